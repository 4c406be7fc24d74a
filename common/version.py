"""The version of this program. Its own module, so that a daemon can say it without importing the SDK."""

VERSION = "0.1.0"
