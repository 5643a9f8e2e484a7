"""The built-in environment: a filing cabinet with a chain of notes in its drawers. It needs no backend."""
