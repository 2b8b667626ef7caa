"""Where a script stands, and how a newcomer's or a resumed script gets there by itself."""
