"""Who is in the job: the state machine, its inputs and its instructions. Pure."""
