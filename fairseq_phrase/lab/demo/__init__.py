"""A web page for trained models: translations, trees that can be edited, and attention."""
