"""Converts models and trained heads in other formats to ONNX folders."""
