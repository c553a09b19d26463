"""Programs of four ranks that share one GPU, each as a host of its own."""
