"""The workers this one trains with: the interface, a job's peers, and the peers of a script that runs alone."""
