"""Who is in the job: the state machine and what it takes in and gives out. Pure."""
