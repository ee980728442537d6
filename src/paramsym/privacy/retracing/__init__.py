"""Does training in a key retrace plain training? What the types say, and what runs show."""
