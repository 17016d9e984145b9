"""A web page that shows what trained models see: translations, trees that can be edited, attention."""
