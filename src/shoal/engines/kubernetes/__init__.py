"""A job as documents that a Kubernetes cluster carries out: values in, YAML out. Nothing here talks to a cluster."""
