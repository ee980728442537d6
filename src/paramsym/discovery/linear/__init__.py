"""All linear vector fields that leave a function unchanged, by linear algebra."""
