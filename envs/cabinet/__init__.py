"""cabinet: the built-in environment, a filing cabinet with a chain of notes in its drawers; needs no backend."""
