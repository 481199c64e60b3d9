"""What trains inside the image; ``python -m envtrain --help`` says what it can do."""
