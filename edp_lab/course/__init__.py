"""What the notebooks are made of: panels (ipywidgets), figures (plotly), and the runner that executes them."""
