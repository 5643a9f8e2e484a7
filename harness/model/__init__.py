"""The model that is trained: loaded or made, packed rows through it, its output layer and its adapters."""
