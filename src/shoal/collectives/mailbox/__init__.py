"""Point-to-point messages: lanes through memory and TCP, matching, and the threads that move messages."""
