"""The backend `shoal` of torch.distributed: our collectives for any PyTorch program. See `docs/torch-backend.md`."""
