"""Autograd split: one program becomes two, the forward and the backward, and little is kept between them."""
