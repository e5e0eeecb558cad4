"""Bytes between workers through the home server: which worker gets what (pure), the server's and the worker's side."""
