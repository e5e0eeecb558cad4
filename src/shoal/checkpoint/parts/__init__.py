"""One worker's part of a checkpoint, from the copy in memory to the file."""
