"""A trained model behind a JSON API and a page to drop images on.

`service` answers requests, `api` and `pages` are what a client sees, `guard` decides who may ask, `server` listens.
"""
