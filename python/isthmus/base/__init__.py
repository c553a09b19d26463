"""What the rest stands on: the native module, the job, errors that all ranks report alike."""
