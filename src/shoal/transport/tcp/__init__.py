"""Meshes over TCP: a worker's listening socket, how two workers connect, and the streams between workers."""
