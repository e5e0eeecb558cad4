"""What a script trains: its models and optimizers, the state of both by global names, and the device they are on."""
