"""`thresher demo`: shows Thresher at work on throwaway servers, and kills processes meanwhile."""
