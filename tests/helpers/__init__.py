"""What several tests share: real weights, toy servers, engines made for tests, enumeration."""
