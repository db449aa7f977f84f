"""Plug-ins: one file per framework. A plug-in uses its framework and the library, not the engine."""
