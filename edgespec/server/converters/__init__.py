"""OpenAI's Responses API and Anthropic's Messages API, converted to and from chat completions."""
