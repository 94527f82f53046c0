"""The black box: collectors that save what will be gone in a moment. Each is bounded in time and size, none raises."""
