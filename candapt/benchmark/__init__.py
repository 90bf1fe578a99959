"""Suites: tasks × methods × seeds, run into the tables of the paper."""
