"""The commands ``multifold bench``, ``explain`` and ``train``, which entry points name."""
