"""The version of the distribution; hatch reads it from here."""

__version__ = "0.1.0"
