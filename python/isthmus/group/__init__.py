"""Process groups: registering the backend, agreement between ranks, node maps, GPUs and MPI, known variables."""
