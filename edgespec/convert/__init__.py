"""Converts models and trained heads from other formats to ONNX folders."""
