"""The backend `shoal` of torch.distributed: Shoal's collectives for any PyTorch program. See `docs/torch-backend.md`."""
