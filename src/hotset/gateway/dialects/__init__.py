"""How clients talk: OpenAI, Anthropic, llama.cpp. Each dialect is one file."""
