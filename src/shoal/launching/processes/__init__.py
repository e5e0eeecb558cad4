"""The processes of a job: their commands, those that run, their output, and spares."""
