"""Fuzzing of every reader: valid files, changed at random, must be read or refused in one sentence."""
