"""`thresher demo`: what Thresher does, before your eyes, on throwaway servers, with processes that are killed."""
