"""Parameter servers, their keeper and the workers that use them, in virtual time around the live pure cores."""
