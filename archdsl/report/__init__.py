"""What people and programs read of a model: tables, trees, pictures, pages and schemas."""
