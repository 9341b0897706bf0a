"""Explains to people what happened and why, what is pending, and what a request would do.

Pure, like `core`: everything is computed from events, history entries and deliveries that the caller has read.
The rest of `core` never imports it. Start with `explanation`.
"""
