"""Proof: every part of Penstock at work in the terminal, with real clients and kill -9."""
