"""Where a script is in program order: the calls it has made, meetings outside loops, and what it goes on with."""
