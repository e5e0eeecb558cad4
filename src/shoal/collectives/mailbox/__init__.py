"""Point-to-point messages: lanes through memory and TCP, matching, and the thread that moves messages."""
