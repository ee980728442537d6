"""GL_h on what an entrywise function gets and gives, in closed form for one batch."""
