"""Errors of the sizer; the message is for operators."""


class CannotSize(Exception):
    """The model's configuration or the GPU is not one that the sizer knows."""


class DoesNotFit(Exception):
    """No layout on one node holds the model; the message has the figures."""
