"""`isthmus.attach`: models that reduce and gather over Isthmus while everything else stays on another backend."""
