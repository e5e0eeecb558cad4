"""What a worker tells about itself, and to whom a script has it logged."""
