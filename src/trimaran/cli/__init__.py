def main() -> None:
    print("trimaran")
