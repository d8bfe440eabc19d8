"""Running: a wired schedule through a backend; the room where arrays are touched."""
