"""What stock TensorFlow 2.15.1 was seen to do, and the scripts that recorded it."""
